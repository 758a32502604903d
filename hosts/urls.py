from django.urls import path

from hosts import views

app_name = "hosts"
urlpatterns = [
    path("", views.host_list, name="list"),
    path("new/", views.host_new, name="new"),
    path("credentials/", views.credential_list, name="credentials"),
    path("credentials/new/", views.credential_new, name="credential-new"),
    path("credentials/<int:pk>/delete/", views.credential_delete, name="credential-delete"),
    path("<int:pk>/", views.host_detail, name="detail"),
    path("<int:pk>/confirm/", views.host_confirm, name="confirm"),
    path("<int:pk>/try-again/", views.host_try_again, name="try-again"),
    path("<int:pk>/refresh/", views.host_refresh, name="refresh"),
    path("<int:pk>/edit/", views.host_edit, name="edit"),
    path("<int:pk>/delete/", views.host_delete, name="delete"),
]
